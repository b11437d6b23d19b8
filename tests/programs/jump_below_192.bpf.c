// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
#include "jump_below.h"

JUMP_BELOW(192)
