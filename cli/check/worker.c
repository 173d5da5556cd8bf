/* SPDX-License-Identifier: Apache-2.0 */
/* The process reads numbers of tests and answers each with a byte when it is done; the verdict is in shared memory. */
#include "cli/check/worker.h"

#include "cli/launch.h"

#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static _Noreturn void worker_main(const check_worker *w, int requests, int answers) {
    check_options options = *w->options;
    size_t index;
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    options.together = 1;
    while (read(requests, &index, sizeof index) == (ssize_t)sizeof index) {
        check_case c = {w->verdict, &options, w->list->tests[index].argument};
        w->list->tests[index].body(&c);
        if (write(answers, "", 1) != 1) break;
    }
    exit(0);
}

/* 1 when there is a process. */
static int start(check_worker *w) {
    int requests[2], answers[2];
    if (!w->verdict) w->verdict = cli_shared_alloc(sizeof *w->verdict);
    if (!w->verdict || pipe(requests)) return 0;
    if (pipe(answers)) {
        close(requests[0]);
        close(requests[1]);
        return 0;
    }
    fflush(NULL); /* or the child would print what is buffered here again */
    pid_t pid = fork();
    if (pid == 0) {
        close(requests[1]);
        close(answers[0]);
        worker_main(w, requests[0], answers[1]);
    }
    close(requests[0]);
    close(answers[1]);
    w->requests = requests[1];
    w->answers = answers[0];
    w->pid = pid > 0 ? pid : 0;
    if (w->pid) {
        setpgid(pid, pid); /* by both, so that it holds whoever comes first */
        return 1;
    }
    close(w->requests);
    close(w->answers);
    return 0;
}

/* Ends the process and returns its wait status. */
static int end(check_worker *w) {
    int wait_status = 0;
    if (!w->pid) return 0;
    close(w->requests);
    close(w->answers);
    kill(-w->pid, SIGKILL);
    waitpid(w->pid, &wait_status, 0);
    w->pid = 0;
    return wait_status;
}

/* Asks for a test and waits for its end. NULL, or what became of the process. */
static const char *ask(check_worker *w, size_t index, double limit_s) {
    char answer;
    struct pollfd answers = {.fd = w->answers, .events = POLLIN};
    if (write(w->requests, &index, sizeof index) != (ssize_t)sizeof index) return "the process has gone";
    if (poll(&answers, 1, (int)(1000 * limit_s)) < 1) return "still running at the deadline";
    return read(w->answers, &answer, 1) == 1 ? NULL : "the process ended";
}

void check_worker_run(check_worker *w, size_t index, check_outcome *outcome) {
    double begin = check_now();
    *outcome = (check_outcome){.state = CHECK_FAILED};
    signal(SIGPIPE, SIG_IGN);
    if (!w->pid && !start(w)) {
        snprintf(outcome->text, sizeof outcome->text, "cannot start a process for tests");
        return;
    }
    memset(w->verdict, 0, sizeof *w->verdict);
    const char *gone = ask(w, index, w->list->tests[index].limit_s * check_patience());
    int alone = atomic_load(&w->verdict->alone);
    if (!gone) outcome->state = (check_state)atomic_load(&w->verdict->state);
    snprintf(outcome->text, sizeof outcome->text, "%s",
             outcome->state == CHECK_PASSED ? w->verdict->note : w->verdict->text);
    if (gone) {
        size_t used = strlen(outcome->text);
        int wait_status = end(w), signal_number = WIFSIGNALED(wait_status) ? WTERMSIG(wait_status) : 0;
        snprintf(outcome->text + used, sizeof outcome->text - used, "%s%s (signal %d)", used ? "; " : "", gone,
                 signal_number);
    } else if (outcome->state == CHECK_FAILED && !alone) {
        end(w);
    }
    outcome->seconds = check_now() - begin;
    if (alone) check_run_test(&w->list->tests[index], w->options, outcome);
}

void check_worker_stop(check_worker *w) {
    end(w);
    if (w->verdict) cli_shared_free(w->verdict, sizeof *w->verdict);
    w->verdict = NULL;
}
