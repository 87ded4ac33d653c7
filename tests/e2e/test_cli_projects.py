"""`oubliette project`, `workspace` and `session cleanup` against a real daemon (WIRE section 8)."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from oubliette.cli.main import main
from tests.e2e.test_cli import Cli
from tests.helpers.process import DaemonProcess

CANARY = "s3cr3t-canary"


class CliWithin(Cli):
    """The same commands within this process: a start costs more than all else (`test_cli.py` does that)."""

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        done = CliRunner().invoke(main, arguments, env=self.environ)
        return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)


@pytest.fixture
def cli(daemon: DaemonProcess) -> Cli:
    return CliWithin(daemon.url, daemon.admin_token)


def test_a_project_is_created_shown_and_deleted(cli: Cli, tmp_path: Path) -> None:
    cli.environ["SECRET_KEY"] = CANARY
    (tmp_path / "vars.env").write_text(f"# mine\nOTHER={CANARY}=\n")
    variables = ["--env", "SECRET_KEY", "--env-file", str(tmp_path / "vars.env")]
    options = ["--description", "for \x1b[31mtests", "--agent", "external", *variables]
    project_id = cli.ok("project", "create", "cli project", *options).strip()
    assert re.fullmatch(r"prj_[0-9a-f]{32}", project_id)
    shown = cli.json("project", "get", project_id)
    assert (shown["name"], shown["agent"], shown["env"]) == ("cli project", "external", ["OTHER", "SECRET_KEY"])
    for table in (cli.ok("project", "list"), cli.ok("project", "get", project_id)):
        assert project_id in table
        assert "SECRET_KEY" in table
        assert CANARY not in table
        assert "\x1b[31m" not in table
    assert project_id in {one["project_id"] for one in cli.json("project", "list")["projects"]}
    assert "(conflict)" in cli.refused("project", "create", "cli project")
    session_id = cli.ok("session", "send", "x", "--project", project_id).strip()
    assert "active session" in cli.refused("project", "delete", project_id)
    assert cli.ok("project", "delete", project_id, "--force") == f"project {project_id} is deleted\n"
    for command in (["project", "get", project_id], ["session", "end", session_id]):
        assert "(not_found)" in cli.refused(*command)


def test_a_value_on_the_command_line_is_refused(cli: Cli) -> None:
    done = cli.run("project", "create", "x", "--env", f"KEY={CANARY}")
    assert (done.returncode, done.stdout) == (2, "")
    assert "list of processes" in " ".join(done.stderr.split())
    assert CANARY not in done.stderr
    assert "(invalid_params)" in cli.refused("project", "create", "x", "--agent", "nobody")


def test_a_workspace_is_created_listed_and_deleted(cli: Cli) -> None:
    project_id = cli.ok("project", "create", "cli workspaces").strip()
    workspace_id = cli.ok("workspace", "create", project_id, "mine").strip()
    unnamed = cli.json("workspace", "create", project_id)
    assert unnamed["name"] == unnamed["workspace_id"]
    rows = cli.ok("workspace", "list", project_id).splitlines()
    assert [row.split()[1] for row in rows] == ["NAME", "default", "mine", unnamed["workspace_id"]]
    session_id = cli.ok("session", "send", "x", "--project", project_id, "--workspace", workspace_id).strip()
    assert "(conflict)" in cli.refused("workspace", "delete", project_id, workspace_id)
    cli.ok("session", "end", session_id)
    assert cli.json("workspace", "delete", project_id, workspace_id) == {"deleted": True}
    assert "(not_found)" in cli.refused("workspace", "delete", project_id, workspace_id)
    assert cli.ok("session", "cleanup", "--project", project_id) == "0 sessions are removed\n"
    assert cli.json("session", "cleanup", "--project", project_id, "--max-age-hours", "0") == {"removed": 1}
    cli.ok("project", "delete", project_id)
