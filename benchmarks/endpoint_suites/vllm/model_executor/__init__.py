"""Replaces vllm.model_executor."""
