"""From a wish for a form to what knows, token by token, which tokens keep to it. No torch."""
