"""These tests need transformers, which is a test extra; without it none is collected."""

import importlib.util

import pytest

if importlib.util.find_spec("transformers") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    from small_models import FAMILIES, make

    @pytest.fixture(params=FAMILIES)
    def model(request):
        return make(request.param)


def pytest_report_header():
    if importlib.util.find_spec("transformers") is None:
        return "tests/integrations: not collected, transformers is missing"
    return None
