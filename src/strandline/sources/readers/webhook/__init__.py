"""Webhook: HTTP push as a source."""
