"""To go on without records that cannot be decoded, or without files that are gone."""
