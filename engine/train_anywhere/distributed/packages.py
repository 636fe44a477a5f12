"""Find missing packages of a framework in this environment, and those built for CPUs, without importing any."""

from importlib import metadata
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


def package_problem(package: str, what: str) -> str:
    """Return a sentence if a package for fine-tuning is missing, which `what` needs; "" if it is installed."""
    command = "pip install --no-deps -r requirements/locks/finetune.txt"
    return "" if find_spec(package) else f"{what} needs the package {package}: {command}."


def cpu_build(framework: str) -> str:
    """Return name and version of the framework's package if it is one for CPUs only; "" otherwise."""
    name = {"lightning": "torch", "keras": "tensorflow-cpu"}[framework]
    versions = [found.version for found in metadata.distributions(name=name)]
    return f"{name} {versions[0]}" if versions and (name != "torch" or versions[0].endswith("+cpu")) else ""
