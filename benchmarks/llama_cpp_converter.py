"""Runs the copy of llama.cpp's converter that the package ik-llama-cpp-python brings.

That copy expects the ``gguf`` package of its own project: two names that it mentions, and that no
file here uses, are added to the published one. It knows a pre-tokenizer by the ids of one text,
which no tiny vocabulary gives: the name can be given instead.

Usage: python llama_cpp_converter.py CONVERTER PRE-TOKENIZER MODEL OUTPUT TYPE
"""

from __future__ import annotations

import enum
import importlib.util
import os
import sys

import gguf


def with_member(kind: type[enum.IntEnum], name: str, value: int) -> enum.EnumMeta:
    members = {member.name: member.value for member in kind}
    return enum.IntEnum(kind.__name__, members | {name: value})


def main() -> None:
    converter, pre_tokenizer, model, output, kind = sys.argv[1:]
    gguf.LlamaFileType = with_member(gguf.LlamaFileType, "MOSTLY_Q6_0", 135)
    gguf.GGMLQuantizationType = with_member(gguf.GGMLQuantizationType, "Q6_0", 133)
    # Its own folder has no gguf beside it.
    os.environ["NO_LOCAL_GGUF"] = "1"
    spec = importlib.util.spec_from_file_location("converter", converter)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if pre_tokenizer != "-":
        module.Model.get_vocab_base_pre = lambda *_: pre_tokenizer
    sys.argv = [converter, model, "--outfile", output, "--outtype", kind]
    module.main()


if __name__ == "__main__":
    main()
