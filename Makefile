# The C core without Python: a static library, its example, and its checks. See docs/c.md.
#
#   make                   build/c/libbsrgemm.a, for the CPU
#   make KERNELS=1         build/c-cuda/libbsrgemm.a, with the CUDA kernels, which need nvcc
#   make example           build/c/multiply, linked with the library; KERNELS=1 likewise
#   make install PREFIX=…  the library and bsrgemm.h
#   make sanitize          the C tests under Address-, UndefinedBehavior-, Leak- and ThreadSanitizer
#   make fuzz SECONDS=600  the fuzzer, which needs clang; finds end up in build/fuzz
CC ?= cc
AR ?= ar
PYTHON ?= python3
CFLAGS ?= -O3
WITH_KERNELS := $(filter-out 0,$(KERNELS))
BUILD ?= $(if $(WITH_KERNELS),build/c-cuda,build/c)
PREFIX ?= /usr/local
SECONDS ?= 600

CORE := $(wildcard csrc/*.c csrc/cpu/*.c)
HEADERS := $(wildcard csrc/*.h csrc/*.def csrc/cpu/*.h csrc/cpu/*.inc kernels/*.h)
OBJECTS := $(CORE:%.c=$(BUILD)/%.o)
LIBRARY := $(BUILD)/libbsrgemm.a
CORE_FLAGS := -std=c11 -fno-math-errno -fPIC -pthread -Wall -Wextra -Wshadow -Icsrc -Ikernels
LIBRARIES := -pthread -lm -ldl

.DEFAULT_GOAL := all
ifneq ($(WITH_KERNELS),)
IMAGES := build/kernels/kernel_list.h
$(BUILD)/csrc/kernel_images.o: CORE_FLAGS += -DBSRG_IMAGE_LIST='"../$(IMAGES)"'
$(BUILD)/csrc/kernel_images.o: $(IMAGES)
endif

all: $(LIBRARY)

$(LIBRARY): $(OBJECTS)
	rm -f $@
	$(AR) rcs $@ $(OBJECTS)

$(BUILD)/%.o: %.c $(HEADERS)
	@mkdir -p $(@D)
	$(CC) $(CORE_FLAGS) $(CFLAGS) -c $< -o $@

# Asked each time: the list may be that of another build, without kernels.
build/kernels/kernel_list.h:
	BSRGEMM_CUDA=1 $(PYTHON) tools/build_kernels.py

example: $(BUILD)/multiply
$(BUILD)/multiply: examples/multiply.c $(LIBRARY)
	$(CC) -std=c11 -Wall -Wextra $(CFLAGS) -Icsrc $< $(LIBRARY) $(LIBRARIES) -o $@

install: $(LIBRARY)
	install -d "$(DESTDIR)$(PREFIX)/lib" "$(DESTDIR)$(PREFIX)/include"
	install -m 644 $(LIBRARY) "$(DESTDIR)$(PREFIX)/lib"
	install -m 644 csrc/bsrgemm.h "$(DESTDIR)$(PREFIX)/include"

sanitize:
	$(PYTHON) tools/sanitize.py --host

# ---- the fuzzer ---------------------------------------------------------------------------------
# Coverage counts the core, without the CPU's inner loops: these take clang minutes with all sanitizers.

FUZZ_CC ?= clang
FUZZ := build/fuzz
FUZZ_FLAGS := -std=c11 -g -fno-math-errno -pthread -Icsrc -Ikernels -Itests/c
FUZZ_SANITIZE := -fsanitize=address,undefined -fno-sanitize-recover=all
FUZZ_SOURCES := $(filter-out csrc/kernel_images.c,$(CORE)) $(wildcard tests/c/fake/*.c tests/fuzz/fuzz_*.c)
FUZZ_OBJECTS := $(FUZZ_SOURCES:%.c=$(FUZZ)/%.o)
WRAPPED := malloc calloc realloc posix_memalign free pthread_create dlopen dlsym

$(FUZZ)/csrc/cpu/isa_%.o: csrc/cpu/isa_%.c $(HEADERS)
	@mkdir -p $(@D)
	$(FUZZ_CC) $(FUZZ_FLAGS) -O0 -fsanitize=address -c $< -o $@
$(FUZZ)/%.o: %.c $(HEADERS) $(wildcard tests/c/fake/*.h tests/fuzz/*.h)
	@mkdir -p $(@D)
	$(FUZZ_CC) $(FUZZ_FLAGS) -O1 -fsanitize=fuzzer-no-link $(FUZZ_SANITIZE) -c $< -o $@
# In two steps, since clang's sanitizers are linked statically and their own calls must stay as they are.
$(FUZZ)/core.o: $(FUZZ_OBJECTS)
	$(FUZZ_CC) -r -nostdlib $(WRAPPED:%=-Wl,--wrap=%) $(FUZZ_OBJECTS) -o $@
$(FUZZ)/fuzz: $(FUZZ)/core.o
	$(FUZZ_CC) -fsanitize=fuzzer $(FUZZ_SANITIZE) $< $(LIBRARIES) -o $@

# New inputs go into build/fuzz/found. `make fuzz-corpus` takes those that reach something new into the repository.
fuzz: $(FUZZ)/fuzz
	@mkdir -p $(FUZZ)/found
	$(FUZZ)/fuzz -max_total_time=$(SECONDS) -max_len=512 -timeout=60 -rss_limit_mb=3000 \
		-artifact_prefix=$(FUZZ)/ $(FUZZ)/found tests/fuzz/corpus
fuzz-corpus: $(FUZZ)/fuzz
	$(FUZZ)/fuzz -set_cover_merge=1 -use_counters=0 -max_len=512 -timeout=60 -rss_limit_mb=3000 tests/fuzz/corpus $(FUZZ)/found

clean:
	rm -rf build/c build/c-cuda $(FUZZ)

.PHONY: build/kernels/kernel_list.h all example install sanitize fuzz fuzz-corpus clean
