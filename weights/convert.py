"""Convert a Hugging Face folder of Qwen2.5 weights to Flax parameters in an Orbax checkpoint.

    python -m weights.convert --model=weights/tiny --out=models/tiny-orbax

Cost: the model's size in memory and on disk; no torch. Expected: a folder with config.json, the
tokenizer's files, params/ (the Orbax checkpoint, in the type of the source), and manifest.json,
which is verified whenever the folder is loaded. Every program that takes --model takes it.
"""

import shutil

from absl import flags

from fcjax import cli, hub, manifest
from fcjax.model import checkpoint
from fcjax.model.params import param_shapes
from weights.hf_dir import new_folder

FLAGS = flags.FLAGS
flags.DEFINE_string("model", None, "Hugging Face folder, or a hub id.", required=True)
flags.DEFINE_string("out", None, "New folder for the converted model.", required=True)

_WEIGHTS = (".safetensors", checkpoint.INDEX, manifest.NAME)


def main(_):
    source = checkpoint.open_folder(hub.model_folder(FLAGS.model))
    if not isinstance(source, checkpoint.HuggingFaceFolder):
        raise ValueError(f"model: expected a Hugging Face folder, got an Orbax one ({FLAGS.model})")
    with new_folder(FLAGS.out) as folder:
        for file in source.folder.iterdir():
            if file.is_file() and not file.name.endswith(_WEIGHTS):
                shutil.copyfile(file, folder / file.name)
        checkpoint.save_orbax(source, folder)
        digest = manifest.write(folder)
    print(f"{len(param_shapes(source.cfg))} parameters written to {FLAGS.out}, manifest {digest}")


if __name__ == "__main__":
    cli.run(main)
