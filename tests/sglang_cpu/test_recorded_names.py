"""The names that the double knows are those of the real package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.sglang_double.sglang import recorded

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(120)]

# In a process of its own: to import SGLang changes the process that does it.
NAMES = """
import inspect, json
from sglang.srt.managers.io_struct import GenerateReqInput, LoadLoRAAdapterReqInput
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import ServerArgs
takers = (ServerArgs, GenerateReqInput, SamplingParams, LoadLoRAAdapterReqInput)
print(json.dumps([list(inspect.signature(taker).parameters) for taker in takers]))
"""


def test_the_double_takes_what_the_real_package_takes() -> None:
    stubs = str(Path(__file__).with_name("stubs"))
    done = subprocess.run(
        [sys.executable, "-c", NAMES],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": stubs, "SGLANG_USE_CPU_ENGINE": "1"},
    )
    real = json.loads(done.stdout.splitlines()[-1])
    double = (
        recorded.SERVER_FIELDS,
        recorded.REQUEST_FIELDS,
        recorded.SAMPLING_FIELDS,
        recorded.ADAPTER_FIELDS,
    )
    for known, names in zip(double, real, strict=True):
        assert known <= {*names}
