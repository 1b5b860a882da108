"""The contracts' assertions show their values, as a test module's do."""

import pytest

pytest.register_assert_rewrite("strandline.testing.blob_contract", "strandline.testing.consensus_contract")
