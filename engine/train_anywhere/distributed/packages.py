"""Whether the packages of a framework are installed in this environment; none is imported."""

from importlib.util import find_spec

PACKAGES = {
    "lightning": ("torch", "lightning"),
    "keras": ("tensorflow", "keras"),
}


def missing_framework(framework: str) -> str:
    """One sentence that says what to type where a package of the framework is not installed; "" if all are."""
    missing = [package for package in PACKAGES[framework] if find_spec(package) is None]
    if not missing:
        return ""
    return (
        f"framework={framework} needs {' and '.join(missing)}, which this environment does not have: "
        f"`make setup FRAMEWORK={framework}` installs it, `make setup FRAMEWORK=all` every framework."
    )
