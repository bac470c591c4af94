"""What a distribution of this project says of itself, for hatchling (pyproject.toml): the commit that it is
made from, and in a wheel its bill of materials (PEP 770).

The environment variable GARLICFARM_REVISION names the commit where there is no checkout, as in the image of
`Dockerfile`. Nothing is written into the source tree, and what is written depends on the tree alone: the same
tree gives the same bytes.
"""

from __future__ import annotations

import json
import os
import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.version import Version

if TYPE_CHECKING:
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

INSIDE = "garlicfarm/_revision.txt"
SBOM = "garlicfarm.cdx.json"
_ALLOWED = r"[0-9A-Za-z.+~_-]{1,64}"
FOR_DEVELOPERS = frozenset({"bench", "fuzz", "release", "test"})
"""Extras that no program which is installed needs."""


def _checked_out(root: Path) -> str:
    """What the package itself says, which is not installed where it is built."""
    spec = spec_from_file_location("version", root / "garlicfarm" / "_version.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return str(module.revision())


class DistributionHook(BuildHookInterface[Any]):
    """Adds the file that `garlicfarm._version.revision` reads, if the commit is known, and the SBOM."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":  # the checkout itself says what is checked out
            return
        self._directory = TemporaryDirectory()
        self._add_revision(build_data)
        if self.target_name == "wheel":
            core = self.metadata.core
            sbom = bill_of_materials(
                self.metadata.version,
                core.description,
                core.license_expression,
                core.dependencies_complex,
                core.optional_dependencies_complex,
            )
            written = Path(self._directory.name, SBOM)
            written.write_text(json.dumps(sbom, indent=2) + "\n", encoding="utf-8")
            build_data["sbom_files"].append(str(written))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            self._directory.cleanup()

    def _add_revision(self, build_data: dict[str, Any]) -> None:
        brought = Path(self.root, INSIDE)
        if brought.exists():  # in an unpacked source distribution
            if (
                self.target_name == "wheel"
            ):  # which excludes it (pyproject.toml): it has the same place as below
                build_data["force_include"][str(brought)] = INSIDE
            return
        revision = os.environ.get("GARLICFARM_REVISION") or _checked_out(Path(self.root))
        if not revision:
            return
        if re.fullmatch(_ALLOWED, revision) is None:
            raise ValueError(f"GARLICFARM_REVISION is {revision!r}; it must be like {_ALLOWED}")
        written = Path(self._directory.name, "revision")
        written.write_text(f"{revision}\n", encoding="ascii")
        build_data["force_include"][str(written)] = INSIDE


def bill_of_materials(
    version: str,
    description: str,
    license_expression: str,
    required: dict[str, Requirement],
    extras: dict[str, dict[str, Requirement]],
) -> dict[str, Any]:
    """A CycloneDX 1.7 document: the wheel bundles nothing of others, and needs what pyproject.toml declares.

    The versions of what it needs, and what that needs in turn, are settled where the wheel is installed.
    """
    ours = f"pkg:pypi/garlicfarm@{version}"
    scopes = {
        each: "optional" for extra in extras.keys() - FOR_DEVELOPERS for each in extras[extra].values()
    } | dict.fromkeys(required.values(), "required")
    components = [
        {
            "type": "library",
            "bom-ref": str(requirement),
            "name": requirement.name,
            "versionRange": _range(requirement.specifier),
            "isExternal": True,
            "scope": scope,
            "purl": f"pkg:pypi/{requirement.name}",
        }
        for requirement, scope in sorted(scopes.items(), key=lambda each: str(each[0]))
    ]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.7.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.7",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": ours,
                "name": "garlicfarm",
                "version": version,
                "description": description,
                "licenses": [{"license": {"id": license_expression}}],
                "purl": ours,
            }
        },
        "components": components,
        "dependencies": [{"ref": ours, "dependsOn": [each["bom-ref"] for each in components]}],
        "compositions": [
            {"aggregate": "complete", "assemblies": [ours]},
            {"aggregate": "incomplete", "dependencies": [ours]},
        ],
    }


def _range(specifiers: SpecifierSet) -> str:
    """In the syntax of package URLs (vers), whose bounds are in order."""
    bounds = sorted(specifiers, key=lambda each: Version(each.version))
    return "vers:pypi/" + "|".join(f"{each.operator}{each.version}" for each in bounds)
