/* SPDX-License-Identifier: Apache-2.0 */
/* The version that this library was built as (the header's macros say what a caller was built with). */
#include "ferry/ferry.h"

#define TEXT_OF(number) #number
#define VERSION_TEXT(major, minor, patch) TEXT_OF(major) "." TEXT_OF(minor) "." TEXT_OF(patch)

const char *ferry_version(void) { return VERSION_TEXT(FERRY_VERSION_MAJOR, FERRY_VERSION_MINOR, FERRY_VERSION_PATCH); }

int ferry_version_number(void) { return FERRY_VERSION_MAJOR * 10000 + FERRY_VERSION_MINOR * 100 + FERRY_VERSION_PATCH; }
