/* SPDX-License-Identifier: Apache-2.0 */
/* Whether two paths are one file: writing the second would take the place of the first. */
#ifndef FERRY_CLI_SAME_FILE_H
#define FERRY_CLI_SAME_FILE_H

/* 1: both are the same regular file, also through links, or neither exists and both are one name in one folder. */
int cli_same_file(const char *a, const char *b);

#endif
