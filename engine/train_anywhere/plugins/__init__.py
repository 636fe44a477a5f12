"""Plugins for the Hydra programs of other projects. Hydra accepts only classes defined in hydra_plugins/.

anywhere  the launcher `hydra/launcher=anywhere`: submit the members of a sweep, or a single one
"""
