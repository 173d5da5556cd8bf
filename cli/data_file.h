/* SPDX-License-Identifier: Apache-2.0 */
/* The files that come along: texts and descriptions of machines in data/. */
#ifndef FERRY_CLI_DATA_FILE_H
#define FERRY_CLI_DATA_FILE_H

#include <stddef.h>

/* Where data/NAME is: in the source tree around a build folder, or in the share folder of an installation. 1, or 0
 * when there is no such file that can be read. */
int cli_data_file(const char *name, char *path, size_t room);

#endif
