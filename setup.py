"""The packages of the wheel: `datasets_rl`, and two folders of the root that become part of it."""

from setuptools import find_packages, setup

FOLDERS = {"datasets_rl.cli": "cli", "datasets_rl.recipes": "recipes"}

setup(
    packages=[
        *find_packages(include=["datasets_rl", "datasets_rl.*"]),
        *FOLDERS,
        *(f"{name}.{one}" for name, folder in FOLDERS.items() for one in find_packages(folder)),
    ],
    package_dir=FOLDERS,
)
