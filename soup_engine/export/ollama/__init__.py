"""GGUF files as models of a local Ollama."""
