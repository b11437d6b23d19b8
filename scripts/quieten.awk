# What a person wants to see of `cargo test -- --show-output`: all of it but the output of tests that went well. Of
# that only the reasons of those that were skipped.

/^successes:$/ { hidden = 1 }
/^(failures:|test result: )/ { hidden = 0 }
/^---- .* stdout ----$/ { test = $2 }
hidden && /^SKIPPED: / { print "test " test ": " $0; fflush() }
!hidden { print; fflush() }
