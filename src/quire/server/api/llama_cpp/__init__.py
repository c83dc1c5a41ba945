"""llama.cpp's own HTTP API, as far as its clients use it."""
