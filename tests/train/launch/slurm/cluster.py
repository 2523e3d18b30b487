"""A Slurm cluster of one node, this machine, for the length of a test: Debian's slurm-wlm and munge, as root.

It has a configuration, keys, sockets and spool of its own below one folder, no accounting and no cgroups, and leaves
whatever else runs on this machine alone.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol")
_PATIENCE = 60.0

CONFIGURATION = """
ClusterName=loopverify
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={daemon}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
KillWait=20
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
PlugStackConfig={folder}/plugstack.conf
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def lacking() -> str | None:
    """Why there can be no cluster here, if there cannot."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]
    if missing:
        return f"Slurm is not installed ({', '.join(missing)} missing): apt-get install slurm-wlm munge"
    return None if os.geteuid() == 0 else "slurmctld and slurmd need root"


@contextmanager
def cluster(folder: Path) -> Iterator[Mapping[str, str]]:
    """A running cluster; gives the environment in which sbatch and the others reach it.

    Raises:
        RuntimeError: it does not come up, with what its logs say.
    """
    environment = {**os.environ, "PATH": _path(), "SLURM_CONF": str(folder / "slurm.conf")}
    _configure(folder)
    munge = folder / "munge"
    commands = [
        [
            *("munged", "--foreground", "--force", f"--key-file={munge}/key", f"--socket={munge}/socket"),
            *(f"--pid-file={munge}/pid", f"--log-file={munge}/log", f"--seed-file={munge}/seed"),
        ],
        ["slurmctld", "-D", "-i", "-f", str(folder / "slurm.conf")],
        ["slurmd", "-D", "-f", str(folder / "slurm.conf"), "-N", _host()],
    ]
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            with (folder / f"{command[0]}.out").open("wb") as output:
                daemons.append(subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT))
            if command[0] == "munged":
                _wait(folder, lambda: (munge / "socket").exists())
        _wait(folder, lambda: "idle" in _said(["sinfo", "--noheader", "--format=%t"], environment))
        yield environment
    finally:
        _end(daemons, environment)


def _end(daemons: list[subprocess.Popen[bytes]], environment: Mapping[str, str]) -> None:
    """Leave no job and no daemon behind."""
    end = time.monotonic() + _PATIENCE
    # An answer of nothing and no answer are not the same.
    while _said(["squeue", "--format=%T"], environment).split() != ["STATE"] and time.monotonic() < end:
        _said(["scancel", "--signal=KILL", "--state=RUNNING", "--user=root"], environment)
        _said(["scancel", "--user=root"], environment)
        time.sleep(0.5)
    for daemon in reversed(daemons):
        daemon.terminate()
    for daemon in daemons:
        try:
            daemon.wait(timeout=10)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()


def _configure(folder: Path) -> None:
    for name in ("munge", "state", "spool"):
        (folder / name).mkdir(parents=True, mode=0o755)
    for parent in folder.parents:  # munged refuses a socket that others could not reach
        if parent.stat().st_uid == os.geteuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o011)
    key = folder / "munge" / "key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    (folder / "plugstack.conf").write_text("")
    controller, daemon = _free_ports(2)
    text = CONFIGURATION.format(
        host=_host(), folder=folder, controller=controller, daemon=daemon, cores=len(os.sched_getaffinity(0))
    )
    (folder / "slurm.conf").write_text(text)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def _wait(folder: Path, condition) -> None:  # type: ignore[no-untyped-def]
    end = time.monotonic() + _PATIENCE
    while not condition():
        if time.monotonic() > end:
            logs = sorted([*folder.glob("*.out"), *folder.glob("*.log"), *folder.glob("munge/log")])
            logs_of_nodes = "\n".join(f"{path.name}: {path.read_text(errors='replace')[-2000:]}" for path in logs)
            raise RuntimeError(f"the Slurm cluster of this test did not come up in {_PATIENCE:g} s:\n{logs_of_nodes}")
        time.sleep(0.2)


def _said(command: list[str], environment: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=10)
    except (subprocess.TimeoutExpired, OSError):
        return ""
    return done.stdout


def _host() -> str:
    return socket.gethostname().split(".")[0]


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
