"""These tests need transformers; without it each is skipped with the reason."""

import pytest

pytest.importorskip("transformers", reason="transformers is a test extra")
