"""JUnit XML for CI servers: a failed test per warning, a passed test per file without warnings."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree

from gpusync_lint.escaping import escaped_lines
from gpusync_lint.output.base.format import Format, Shows
from gpusync_lint.settings.selection import Level

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    from gpusync_lint.model.findings import FileError, Finding
    from gpusync_lint.output.base.format import Options
    from gpusync_lint.run.outcome import Outcome


class JUnit(Format):
    """A test suite, in ASCII."""

    audience = "test reports of CI servers"
    shows = Shows(
        "failed tests",
        suppressed="skipped tests",
        errors="tests with an error",
        statistics="properties of the suite",
    )

    def render(self, outcome: Outcome, options: Options) -> str:
        """Tests for files with errors first, then for warnings, then for files without warnings."""
        suite = ElementTree.Element("testsuite", {"name": "gpusync lint"})
        if options.statistics or options.fixed:
            _properties(suite, outcome, options)
        failed = {error.path for error in outcome.errors}
        for error in outcome.errors:
            _error(suite, error, outcome)
        for one in outcome.reported:
            if one.level is not Level.WARNING:
                continue
            if one.accepted is None:
                failed.add(one.finding.path)
                _failure(suite, one.finding, outcome)
            elif options.show_suppressed:
                case = _case(suite, one.finding, outcome)
                ElementTree.SubElement(case, "skipped", {"message": escaped_lines(one.accepted)})
        for path in sorted(outcome.texts.keys() - failed):
            ElementTree.SubElement(suite, "testcase", {"classname": escaped_lines(path), "name": "no warnings"})
        suites = ElementTree.Element("testsuites")
        suites.append(suite)
        for element in (suites, suite):
            for attribute, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error")):
                element.set(attribute, str(sum(1 for _ in suite.iter(tag))))
        suite.set("skipped", str(sum(1 for _ in suite.iter("skipped"))))
        ElementTree.indent(suites)
        body = (
            ElementTree.tostring(suites, encoding="us-ascii", xml_declaration=False)
            .decode("ascii")
            .replace("##", "#&#35;")
        )  # `##[` is a command in the logs of some CI servers
        return f'<?xml version="1.0" encoding="utf-8"?>\n{body}\n'


def _properties(suite: Element, outcome: Outcome, options: Options) -> None:
    properties = ElementTree.SubElement(suite, "properties")
    for count in outcome.statistics if options.statistics else ():
        _property(properties, count.code, count.count)
    if options.fixed:
        _property(properties, "fixed", outcome.fixed)


def _property(properties: Element, name: str, value: int) -> None:
    ElementTree.SubElement(properties, "property", {"name": f"gpusync.{name}", "value": str(value)})


def _case(suite: Element, finding: Finding, outcome: Outcome) -> Element:
    place = outcome.place(finding).removeprefix(f"{finding.path}:")
    name = f"{finding.code} {finding.name} at {place}"
    attributes = {"classname": finding.path, "name": name}
    return ElementTree.SubElement(suite, "testcase", {key: escaped_lines(value) for key, value in attributes.items()})


def _failure(suite: Element, finding: Finding, outcome: Outcome) -> None:
    failure = ElementTree.SubElement(_case(suite, finding, outcome), "failure", {"type": finding.code})
    failure.set("message", escaped_lines(finding.message))
    span = finding.span
    line = "".join(outcome.texts.get(finding.path, "").split("\n")[span.line - 1 : span.line]).strip()
    failure.text = escaped_lines(f"{outcome.place(finding)}: {finding.message}\n{line}\nremedy: {finding.advice}")


def _error(suite: Element, error: FileError, outcome: Outcome) -> None:
    attributes = {"classname": escaped_lines(error.path), "name": "could not be linted"}
    case = ElementTree.SubElement(suite, "testcase", attributes)
    element = ElementTree.SubElement(
        case, "error", {"message": escaped_lines(error.message_with_cell), "type": "error"}
    )
    line = outcome.error_line(error)
    element.text = escaped_lines(f"{error.path}{'' if line is None else f':{line}'}: {error.message_with_cell}")
