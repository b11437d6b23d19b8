# Counts what `cargo test -- --show-output` and scripts/test-vm say, over all the test programs they ran.

# A test program starts, and is expected to give its result. The end-to-end tests start twice: here, and in the virtual
# machine.
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
    split("", told)
}

# Not skipped: another command runs them.
/^test .* \.\.\. ignored, make test-long runs it$/ { later++ }

/^test .* \.\.\. ok$/ { ran[program " " $2]++ }

/^(successes|failures):$/ { section = $1 }

# The output of one test.
/^---- .* stdout ----$/ { test = $2 }

# Within a test's output, or past cargo's capture: then with the test's name. It counts once, however often it is said.
/^SKIPPED: / && section != "failures:" {
    name = section == "" ? $2 : test ":"
    if (!(name in told)) {
        told[name] = 1
        passed--
        sub(/:$/, "", name)
        skips[program " " name]++
    }
}

END {
    # What one kernel cannot do and the other did is not skipped.
    for (name in skips)
        if (ran[name] <= skips[name]) skipped++
    failed += started - finished
    if (status != 0 && failed == 0) failed = 1
    if (passed + failed + skipped == 0) {
        print "No test was run." > "/dev/stderr"
        failed = 1
    }
    printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped
    exit failed > 0
}
