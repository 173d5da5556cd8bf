/* SPDX-License-Identifier: Apache-2.0 */
/* The subcommands of `ferry`: one function each, in cli/NAME.c. argv[0] is the subcommand's name. */
#ifndef FERRY_CLI_COMMANDS_H
#define FERRY_CLI_COMMANDS_H

/* Name and the line that `ferry --help` shows. */
#define FERRY_COMMANDS(X)                                                                                              \
    X(train, "train a small mixture-of-experts language model on a text")                                              \
    X(run, "run one layer on tensors from a file")                                                                     \
    X(bench, "measure one layer beside the product kernel alone")                                                      \
    X(tune, "measure what a layer's rules leave open on this machine, and keep the best for layers to use")            \
    X(plan, "say what a layer will hold, move and compute, and how fast a machine could be")                           \
    X(trace, "show what every worker does in a call, as a timeline")                                                   \
    X(check, "test this build on this machine against the reference")                                                  \
    X(info, "say what this build and this machine can do")

/* Returns the exit code of the process: one of cli_exit_code in cli/message.h. */
#define FERRY_COMMAND_DECLARE(name, summary) int ferry_cmd_##name(int argc, char **argv);
FERRY_COMMANDS(FERRY_COMMAND_DECLARE)
#undef FERRY_COMMAND_DECLARE

#endif
