// What kernels use. Included before the pragma that names their instructions: of an inline function
// the linker keeps one copy for all files, which has to run on any processor.

#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "pool.h"
#include "scalar.h"
#include "scratch.h"
