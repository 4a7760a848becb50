"""GGUF files behind the face of ``backends.base``: llama.cpp in this process, through xllamacpp."""
