"""Replaces vllm.transformers_utils.repo_utils: nothing is downloaded."""

from __future__ import annotations


class _Api:
    def snapshot_download(self, repo_id: str) -> str:
        """The adapter's name; a server that gets it as an option is refused."""
        return repo_id


def hf_api() -> _Api:
    """A hub without files."""
    return _Api()
