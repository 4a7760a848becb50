"""vLLM behind the face of ``backends.base``: in process through ``AsyncLLM``, with its engine core
in processes of its own."""
