"""What operators look at: metrics, health, the live page, admin endpoints, OpenAPI."""
