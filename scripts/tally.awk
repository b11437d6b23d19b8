# Counts the results that `cargo test -- --show-output` and scripts/test-vm print, over all their test programs.

# A test program starts, and must print its result. The end-to-end tests start twice: here, and in the virtual machine.
/^ +(Running|Doc-tests) / {
    started++
    program = $2 == "unittests" ? $2 " " $3 " " $4 : $2
}

/^test result: / {
    finished++
    for (i = 4; i < NF; i++) {
        if ($(i + 1) == "passed;") passed += $i
        if ($(i + 1) == "failed;") failed += $i
        if ($(i + 1) == "ignored;") skipped += $i - later
    }
    section = test = ""
    later = 0
    split("", counted)
}

# scripts/test ran a failed test twice.
/^(Passed|Failed) alone: / {
    failed--
    alone = alone $0 "\n"
}

# These are not skipped: another command runs them.
/^test .* \.\.\. ignored, make test-long runs it$/ { later++ }

/^test .* \.\.\. ok$/ { ran[program " " $2]++ }

/^(successes|failures):$/ { section = $1 }

# The beginning of one test's output.
/^---- .* stdout ----$/ { test = $2 }

# The reason is within a test's output, or cargo did not capture it, and it begins with the test's name. It counts once,
# however often it is printed.
/^SKIPPED: / && section != "failures:" {
    name = section == "" ? $2 : test ":"
    if (!(name in counted)) {
        counted[name] = 1
        passed--
        sub(/:$/, "", name)
        skips[program " " name]++
    }
}

END {
    # A test that was skipped under one kernel and ran under the other is not skipped.
    for (name in skips)
        if (ran[name] <= skips[name]) skipped++
    failed += started - finished
    if (status != 0 && failed == 0) failed = 1
    if (passed + failed + skipped == 0) {
        print "No test was run." > "/dev/stderr"
        failed = 1
    }
    printf "%s", alone
    printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped
    exit failed > 0
}
