"""`triage-monitor` and `python -m triage_monitor`: hands argv to the command line."""

from __future__ import annotations


def main() -> None:
    from triage_monitor.cli.main import run

    run()


if __name__ == "__main__":
    main()
