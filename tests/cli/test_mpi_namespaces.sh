# SPDX-License-Identifier: Apache-2.0
# Two hosts: namespaces of network, name, mounts and System V memory, joined by a virtual cable and nothing else but the
# files. MPI finds two machines there; the bytes are those of two nodes in one program. A process on the other host
# dies: the job ends, and goes on from its checkpoint.
. tests/cli/lib.sh
. tests/cli/train_lib.sh

{ [ -e "$FERRY_BUILD/ferry_mpi.so" ] && command -v mpirun && command -v ip; } >/dev/null ||
    skip "no ferry_mpi.so, mpirun or ip"
mpirun --version 2>&1 | grep -q "Open MPI" || skip "mpirun is not Open MPI's, whose options are used"
unshare --net --uts --mount --ipc sh -c 'ip link add name test0 type veth peer name test1' 2>/dev/null ||
    skip "this user may not make network namespaces"

holders=
trap 'kill $holders 2>/dev/null; rm -rf "$work"' EXIT
for host in 1 2; do
    # A /dev/shm of its own: what is left in common is the file system. Ready once its name is written.
    unshare --net --uts --mount --ipc sh -c "hostname ferry-$host; mount -t tmpfs none /dev/shm; ip link set lo up
        echo \$\$ >$work/host$host.part; mv $work/host$host.part $work/host$host; exec sleep 600" &
    holders="$holders $!"
    wait_for 20 test -s "$work/host$host" || problem "no namespaces for host $host"
done
one=$(cat "$work/host1") two=$(cat "$work/host2")
nsenter -t "$one" -n ip link add name cable type veth peer name cable netns "$two"
for host in 1 2; do
    pid=$(cat "$work/host$host")
    nsenter -t "$pid" -n ip addr add 10.77.0.$host/24 dev cable
    nsenter -t "$pid" -n ip link set cable up
    echo "10.77.0.$host slots=2" >>"$work/hosts"
done

# What mpirun calls instead of a remote shell: HOST COMMAND...
cat >"$work/enter" <<AGENT
#!/bin/sh
host=\${1##*.}
shift
exec nsenter -t "\$(cat "$work/host\$host")" -n -u -m -i sh -c "\$*"
AGENT
chmod +x "$work/enter"

cluster() {
    nsenter -t "$one" -n -u -m -i --wd="$PWD" env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
        mpirun --hostfile "$work/hosts" --mca plm_rsh_agent "$work/enter" --mca orte_keep_fqdn_hostnames 1 \
        --mca oob_tcp_if_include cable --mca btl_tcp_if_include cable --mca btl tcp,vader,self --bind-to none \
        -n 4 --wdir "$PWD" "$(realpath "$FERRY")" train "$@"
}

expect 0 "$FERRY" train --data "$text" --nodes 2 --ranks 2 --steps 3 --save "$work/expected"
expect 0 cluster --data "$text" --steps 3 --save "$work/apart"
says out "2 ranks of each of 2 nodes"
cmp "$work/expected" "$work/apart" || problem "two hosts: other bytes than two nodes in one program"

cluster --data "$text" --timeout 20 --steps 100000 --save "$work/kept" --save-every 2 >"$work/out" 2>"$work/err" &
job=$!
if wait_for 60 test -s "$work/kept"; then
    begin=$(date +%s)
    victim=
    # Of all trainings that write this file, one in the other host's namespace.
    for process in /proc/[0-9]*; do
        [ "$(readlink "$process/ns/net")" = "$(readlink "/proc/$two/ns/net")" ] &&
            tr '\0' ' ' <"$process/cmdline" | grep -q "^[^ ]*ferry train .*$work/kept" && victim=${process#/proc/}
    done
    kill -9 "$victim" || problem "no process to kill on the other host"
    wait $job && problem "a job of which a process was killed ended with 0"
    [ $(($(date +%s) - begin)) -lt 40 ] || problem "it took longer than the deadline to end"
    goes_on "$work/kept" cluster
else
    kill $job
    problem "no checkpoint after a minute: $(cat "$work/err")"
fi
finish
