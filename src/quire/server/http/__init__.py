"""HTTP itself: connections, bodies, errors, API keys, CORS, addresses. No models, no jobs."""
