"""From SQL text to the algebra."""
