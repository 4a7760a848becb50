"""The names that the double knows are those of the real package."""

from __future__ import annotations

import dataclasses

import pytest

from tests.support.sglang_double.sglang import recorded

pytestmark = pytest.mark.sglang


def test_the_double_takes_what_the_real_package_takes() -> None:
    from sglang.srt.managers.io_struct import GenerateReqInput, LoadLoRAAdapterReqInput
    from sglang.srt.sampling.sampling_params import SamplingParams
    from sglang.srt.server_args import ServerArgs

    assert {*ServerArgs.__struct_fields__} >= recorded.SERVER_FIELDS
    assert {*SamplingParams.__struct_fields__} >= recorded.SAMPLING_FIELDS
    assert {*LoadLoRAAdapterReqInput.__struct_fields__} >= recorded.ADAPTER_FIELDS
    assert {field.name for field in dataclasses.fields(GenerateReqInput)} >= recorded.REQUEST_FIELDS
