"""The reference pages of the documentation site, written from the code each time the site is built.

A hook of mkdocs (see mkdocs.yml): commands from the command line's own help, keys from the scenario's JSON
schema, and one page for each `servetwin list`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from calibration.cli import app as calibrate_app
from simulator.cli import app
from simulator.cli_lists import LISTINGS
from simulator.scenario import Scenario


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages to those of the docs folder."""
    pages = {"commands": commands(), "scenario": scenario(), "names": names()}
    for name, lines in pages.items():
        content = "\n".join(lines) + "\n"
        files.append(File.generated(config, f"reference/{name}.md", content=content))
    return files


def commands() -> Iterator[str]:
    """Every command with its arguments and options."""
    yield "# Commands\n"
    for program, tree in (("servetwin", app), ("servetwin calibrate", calibrate_app)):
        yield from _command(typer.main.get_command(tree), program)


def _command(command: Any, path: str) -> Iterator[str]:
    """A command, or a group and the commands in it."""
    if hasattr(command, "commands"):
        for name, inner in command.commands.items():
            if name != "calibrate":  # it passes its arguments on to a program of its own
                yield from _command(inner, f"{path} {name}")
        return
    yield f"## {path}\n\n{command.help or ''}\n"
    rows = [
        _parameter(parameter) for parameter in command.params if not getattr(parameter, "hidden", False)
    ]
    if rows:
        yield from _table(("option", "meaning", "default"), rows)


def _parameter(parameter: Any) -> Sequence[str]:
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    if parameter.param_type_name == "argument":
        names = f"`{parameter.metavar or parameter.name.upper()}`"
    default = parameter.default
    plain = default if isinstance(default, (int, float, str)) and not isinstance(default, bool) else ""
    return names, getattr(parameter, "help", "") or "", f"`{plain}`" if plain != "" else ""


def scenario() -> Iterator[str]:
    """Every key of a scenario, one table for each group of keys."""
    schema = Scenario.model_json_schema()
    yield "# Keys of a scenario\n"
    yield "`servetwin schema` prints the same for editors, `servetwin init` writes a file to start from.\n"
    groups = {"Scenario": schema, **dict(sorted(schema["$defs"].items()))}
    for name, group in groups.items():
        if "properties" not in group:
            continue
        yield f"## {name}\n\n{group.get('description', '')}\n"
        rows = [
            (f"`{key}`", _type(field), field.get("description", ""), _default(field))
            for key, field in group["properties"].items()
        ]
        yield from _table(("key", "holds", "meaning", "default"), rows)


def _type(field: Mapping[str, Any]) -> str:
    """What a key may hold, in a few words."""
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for several in ("anyOf", "oneOf"):
        if several in field:
            kinds = [_type(option) for option in field[several] if option.get("type") != "null"]
            return " or ".join(dict.fromkeys(kinds))
    if "const" in field:
        return f"`{field['const']}`"
    if "enum" in field:
        return " or ".join(f"`{word}`" for word in field["enum"])
    bounds = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤"}
    limits = ", ".join(f"{sign} {field[key]:g}" for key, sign in bounds.items() if key in field)
    return " ".join(filter(None, (str(field.get("type", "")), limits)))


def _default(field: Mapping[str, Any]) -> str:
    default = field.get("default")
    return "" if default is None or isinstance(default, (dict, list)) else f"`{default}`"


def names() -> Iterator[str]:
    """What scenarios may name: models, hardware, profiles, policies, workloads and formats."""
    yield "# Models, hardware, policies, workloads, formats\n"
    for title, listing in LISTINGS.items():
        rows = listing()
        yield f"## {title.capitalize()}\n"
        yield from _table(tuple(rows[0]), [[str(value) for value in row.values()] for row in rows])


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for cells in (header, ["---"] * len(header), *rows):
        yield "| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in cells) + " |"
    yield ""
