"""These tests need transformers, which is a test extra; without it none is collected."""

import importlib.util

if importlib.util.find_spec("transformers") is None:
    collect_ignore_glob = ["test_*.py"]


def pytest_report_header():
    if importlib.util.find_spec("transformers") is None:
        return "tests/integrations: not collected, transformers is missing"
    return None
