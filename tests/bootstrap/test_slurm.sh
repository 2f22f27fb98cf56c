#!/bin/sh
# Ranks under a real Slurm, set up for this test: munged, slurmctld and two slurmd on this machine, with all files in a
# temporary folder. Ranks are started by srun with PMIx, with PMI and with variables alone, and from a batch script.
#
# usage: test_slurm.sh BUILD_FOLDER; where Slurm cannot run, prints the reason and exits with 77.
set -u
probe=$1/tests/world_probe
folder= daemons=

skip() {
    echo "skipped: $*"
    exit 77
}

[ "$(id -u)" -eq 0 ] || skip "Slurm's daemons need root"
PATH=$PATH:/usr/sbin
for program in munged munge slurmctld slurmd srun sbatch sinfo scancel; do
    command -v $program >/dev/null || skip "no $program (Debian: slurm-wlm, munge)"
done

finish() {
    code=$?
    trap - EXIT
    if [ -n "$daemons" ]; then
        timeout 5 scancel --user root >/dev/null 2>&1
        for i in $(seq 10); do
            [ -n "$(timeout 5 squeue -h 2>/dev/null)" ] || break
            sleep 0.3
        done
        kill $daemons 2>/dev/null
        sleep 0.3
        kill -9 $daemons 2>/dev/null
        wait
    fi
    [ -z "$folder" ] || rm -rf "$folder"
    exit $code
}
trap finish EXIT
trap 'exit 1' INT TERM

folder=$(mktemp -d) || exit 1
here=$(hostname -s)
second=zzz # sorts after `here`, so that rank 0 is on the node with this host's name
base=$((31000 + $$ % 500 * 3))
chmod 755 "$folder"
mkdir -p "$folder/state" "$folder/spool/$here" "$folder/spool/$second" "$folder/tmp/$here" "$folder/tmp/$second"
mkdir -m 700 "$folder/munge"
(umask 077 && head -c 128 /dev/urandom >"$folder/munge/key")

cat >"$folder/slurm.conf" <<CONF
ClusterName=test
SlurmctldHost=$here(127.0.0.1)
SlurmctldPort=$base
AuthType=auth/munge
AuthInfo=socket=$folder/munge/socket
CredType=cred/munge
SlurmUser=root
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool/%n
TmpFS=$folder/tmp/%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd-%n.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
SlurmdParameters=config_overrides
KillWait=2
MpiDefault=none
MailProg=/bin/true
NodeName=$here NodeHostname=$here NodeAddr=127.0.0.1 Port=$((base + 1)) CPUs=4
NodeName=$second NodeHostname=$here NodeAddr=127.0.0.1 Port=$((base + 2)) CPUs=4
PartitionName=all Nodes=$here,$second Default=YES MaxTime=10 State=UP
CONF
export SLURM_CONF="$folder/slurm.conf"

munged --foreground --force --key-file="$folder/munge/key" --socket="$folder/munge/socket" --pid-file="$folder/munge/pid" \
    --log-file="$folder/munge/log" --seed-file="$folder/munge/seed" >"$folder/munge.out" 2>&1 &
daemons="$daemons $!"
for i in $(seq 10); do
    munge --socket "$folder/munge/socket" -n >/dev/null 2>&1 && break
    sleep 0.2
done
slurmctld -D >"$folder/slurmctld.out" 2>&1 &
daemons="$daemons $!"
for node in "$here" "$second"; do
    slurmd -D -N "$node" >"$folder/slurmd-$node.out" 2>&1 &
    daemons="$daemons $!"
done
ready=
for i in $(seq 30); do
    ready=$(timeout 5 sinfo -h -t idle -o %D 2>/dev/null)
    [ "$ready" = 2 ] && break
    sleep 0.4
done
if [ "$ready" != 2 ]; then
    tail -n 3 "$folder"/*.log "$folder"/*.out 2>/dev/null
    skip "the nodes of a Slurm of our own do not become ready here (their logs are above)"
fi

# The environment of a user's job: without variables that a launcher has set for this test's own process.
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT GROUP_RANK GROUP_WORLD_SIZE 2>/dev/null
export TUTTI_CONNECT_TIMEOUT_MS=10000
failed=0

# check WHAT EXPECTED COMMAND...: its sorted output must be EXPECTED.
check() {
    what=$1 expected=$2
    shift 2
    output=$(timeout 20 "$@" 2>&1 | grep -v '^srun: job' | sort)
    if [ "$output" = "$expected" ]; then
        echo "ok: $what"
    else
        echo "FAILED: $what: expected"
        echo "$expected"
        echo "and got"
        echo "$output"
        failed=1
    fi
}

two_nodes="rank 0 of 4, local 0 of 2, node 0 of 2: summed
rank 1 of 4, local 1 of 2, node 0 of 2: summed
rank 2 of 4, local 0 of 2, node 1 of 2: summed
rank 3 of 4, local 1 of 2, node 1 of 2: summed"
one_node="rank 0 of 2, local 0 of 2, node 0 of 1: summed
rank 1 of 2, local 1 of 2, node 0 of 1: summed"
uneven="rank 0 of 3, local 0 of 2, node 0 of 2: summed
rank 1 of 3, local 1 of 2, node 0 of 2: summed
rank 2 of 3, local 0 of 1, node 1 of 2: summed"

for way in pmix pmi2; do
    if srun --mpi=list 2>&1 | grep -q "^[[:space:]]*$way\$"; then
        check "two nodes by $way" "$two_nodes" srun --mpi=$way -N 2 -n 4 "$probe" reduce
    else
        echo "left out: this Slurm has no $way"
    fi
done
check "one node by its variables" "$one_node" srun -N 1 -n 2 "$probe" reduce
if getent hosts "$here" >/dev/null; then
    check "two nodes by their variables" "$two_nodes" srun -N 2 -n 4 "$probe" reduce
    check "nodes with different numbers of ranks" "$uneven" srun -N 2 -n 3 -m block "$probe" reduce
else
    echo "left out: two nodes by their variables (this host's name has no address)"
fi

cat >"$folder/job.sh" <<JOB
#!/bin/sh
$probe world
srun -N 1 -n 2 $probe reduce
JOB
check "a batch script is one process, its steps are not" \
    "$(printf '%s\n' "rank 0 of 1, local 0 of 1, node 0 of 1: is there" "$one_node")" \
    sh -c "sbatch --quiet -W -N 2 -n 2 -o '$folder/job.out' '$folder/job.sh' && grep -v '^tutti warn' '$folder/job.out'"

exit $failed
