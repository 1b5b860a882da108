"""The contract's assertions show their values, as a test module's do."""

import pytest

pytest.register_assert_rewrite("strandline.testing.contracts.driver_contract")
