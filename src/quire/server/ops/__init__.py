"""Operations: metrics, health checks, logs, traces, the web page, admin endpoints, OpenAPI."""
