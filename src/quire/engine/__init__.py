"""The overlapped loop and everything that knows time, threads and processes."""
