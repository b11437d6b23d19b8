# Counts what `cargo test -- --show-output` says, over all the test programs it ran.

# A test program starts, and is expected to give its result.
/^ +(Running|Doc-tests) / { started++ }

/^test result: / {
    finished++
    for (i = 4; i < NF; i++) {
        if ($(i + 1) == "passed;") passed += $i
        if ($(i + 1) == "failed;") failed += $i
        if ($(i + 1) == "ignored;") skipped += $i
    }
    section = test = ""
}

/^(successes|failures):$/ { section = $1 }

# The output of one test: however often it says that it is skipped, it counts once.
/^---- .* stdout ----$/ { test = $2 }

/^SKIPPED: / && section == "successes:" && test != "" {
    skipped++
    passed--
    test = ""
}

END {
    failed += started - finished
    if (status != 0 && failed == 0) failed = 1
    if (passed + failed + skipped == 0) {
        print "No test was run." > "/dev/stderr"
        failed = 1
    }
    printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped
    exit failed > 0
}
