"""Names of other engines (vLLM, SGLang, llama.cpp, Ollama), and what each one means here."""
