#!/usr/bin/env bash
# The backend's tests against the real SGLang, on a CPU and without its kernels, which are made for
# GPUs: stand-ins under stubs/ take their places. Makes an environment of 2 GB, and takes minutes.
#   tests/sglang_cpu/run.sh [FOLDER]    FOLDER keeps the environment for the next time
set -euo pipefail
cd "$(dirname "$0")/../.."

if [[ $# -gt 0 ]]; then
    environment=$1
else
    environment=$(mktemp -d)
    trap 'rm -rf "$environment"' EXIT
fi
python="$environment/bin/python"

if [[ ! -x $python ]]; then
    "${PYTHON311:-python3.11}" -m venv "$environment"
    pip=("$python" -m pip install --quiet --disable-pip-version-check)
    # What it depends on has no builds without a GPU, so what its imports need is named here.
    "${pip[@]}" --no-deps sglang==0.5.23
    "${pip[@]}" \
        torch==2.13.0 transformers==5.19.0 xgrammar==0.2.7 compressed-tensors==0.18.0 \
        openai==2.8.0 openai-harmony==0.0.4 outlines==0.1.11 apache-tvm-ffi==0.1.11 \
        "llguidance<2" soundfile==0.13.1 "uvicorn>=0.51" \
        aiohttp anthropic blobfile build datasets distro easydict einops fastapi gguf interegular \
        ipython msgspec ninja numba numpy nvidia-ml-py orjson packaging partial-json-parser pillow \
        prometheus-client psutil pybase64 python-multipart pyzmq requests scipy sentencepiece \
        setproctitle tiktoken uvloop watchfiles xxhash zstandard
    "${pip[@]}" -e . "pytest>=9" "pytest-asyncio>=1.3" "pytest-timeout>=2.4"
fi

"$python" - <<'VERSIONS'
from datetime import date
from importlib.metadata import version

packages = ("sglang", "torch", "transformers", "xgrammar")
print(date.today(), *(f"{package} {version(package)}" for package in packages))
VERSIONS
OMP_NUM_THREADS=1 "$python" -m pytest tests/sglang_cpu
