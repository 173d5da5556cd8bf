/* SPDX-License-Identifier: Apache-2.0 */
/* A test's process leads a process group of its own; its deadline, or its end, is the end of the whole group. */
#include "cli/check/runner.h"

#include "cli/launch.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static _Noreturn void test_main(const check_test *test, const check_options *options, check_verdict *verdict, int log) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (log >= 0) dup2(log, STDERR_FILENO);
    check_case c = {verdict, options, test->argument};
    test->body(&c);
    exit(0);
}

/* Waits for the child to end, without reaping it; 0 when `limit_s` passed first. */
static int wait_bounded(pid_t pid, double limit_s) {
    double deadline = check_now() + limit_s;
    for (double pause = 0.0005;; pause = pause < 0.01 ? 1.5 * pause : pause) {
        siginfo_t info = {0};
        if (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid) return 1;
        if (check_now() > deadline) return 0;
        check_sleep(pause);
    }
}

/* The beginning of what the test and its ranks wrote to stderr, on lines of their own: where a checker says what. */
static void append_log(char *text, size_t room, int log) {
    size_t used = strlen(text);
    if (log < 0 || used + 2 >= room) return;
    ssize_t got = pread(log, text + used + 1, room - used - 2, 0);
    if (got <= 0) return;
    text[used] = '\n';
    for (used += (size_t)got; text[used] == '\n'; used--) {
    }
    text[used + 1] = '\0';
}

void check_run_test(const check_test *test, const check_options *options, check_outcome *outcome) {
    *outcome = (check_outcome){.state = CHECK_FAILED};
    double begin = check_now();
    check_verdict *verdict = cli_shared_alloc(sizeof *verdict);
    int log = memfd_create("check-log", MFD_CLOEXEC);
    fflush(NULL); /* or the child would print what is buffered here again */
    pid_t pid = verdict ? fork() : -1;
    if (pid == 0) test_main(test, options, verdict, log);
    if (pid < 0) {
        snprintf(outcome->text, sizeof outcome->text, "cannot start the test's process");
    } else {
        setpgid(pid, pid); /* by both, so that it holds whoever comes first */
        double limit_s = test->limit_s * check_patience();
        int ended = wait_bounded(pid, limit_s), wait_status = 0;
        kill(-pid, SIGKILL);
        waitpid(pid, &wait_status, 0);
        int clean = ended && WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0;
        if (clean) outcome->state = (check_state)atomic_load(&verdict->state);
        snprintf(outcome->text, sizeof outcome->text, "%s",
                 outcome->state == CHECK_PASSED ? verdict->note : verdict->text);
        size_t used = strlen(outcome->text);
        char *rest = outcome->text + used;
        size_t room = sizeof outcome->text - used;
        const char *joint = used ? "; " : "";
        if (!ended)
            snprintf(rest, room, "%sstill running after %.0f s", joint, limit_s);
        else if (WIFSIGNALED(wait_status))
            snprintf(rest, room, "%send by signal %d", joint, WTERMSIG(wait_status));
        else if (!clean)
            snprintf(rest, room, "%sexit code %d", joint, WEXITSTATUS(wait_status));
        if (outcome->state == CHECK_FAILED) append_log(outcome->text, sizeof outcome->text, log);
    }
    if (log >= 0) close(log);
    cli_shared_free(verdict, sizeof *verdict);
    outcome->seconds = check_now() - begin;
}
