"""Find missing packages of a framework in this environment, without importing any."""

from importlib.util import find_spec

PACKAGES = {
    "lightning": ("torch", "lightning"),
    "keras": ("tensorflow", "keras"),
}


def framework_problem(framework: str) -> str:
    """Return a sentence with the missing packages of the framework and what to type; "" if all are installed."""
    missing = [package for package in PACKAGES[framework] if find_spec(package) is None]
    if not missing:
        return ""
    return (
        f"framework={framework} needs {' and '.join(missing)}, which this environment does not have: "
        f"run `make setup FRAMEWORK={framework}`, or `make setup FRAMEWORK=all` for every framework."
    )
