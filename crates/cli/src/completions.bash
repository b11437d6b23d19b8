# Completions of trawl for bash. The script asks trawl for them, by the protocol of clap_complete.
_trawl() {
    local IFS=$'\013' words=() word glue= index=0 number joined=
    # readline splits words at ':' and '=', which are part of NAMESPACE:INTERFACE and --option=value.
    for ((number = 0; number <= COMP_CWORD; number++)); do
        word=${COMP_WORDS[number]}
        if [[ $number -gt 0 && ( -n $glue || $word =~ ^[:=]+$ ) ]]; then
            index=$((${#words[@]} - 1))
            words[index]+=$word
            joined=yes
        else
            words+=("$word")
            joined=
        fi
        [[ $word =~ ^[:=]+$ ]] && glue=yes || glue=
    done
    index=$((${#words[@]} - 1))
    COMPREPLY=($(
        _CLAP_IFS=$IFS _CLAP_COMPLETE_INDEX=$index _CLAP_COMPLETE_COMP_TYPE=$COMP_TYPE _CLAP_COMPLETE_SPACE=false \
            COMPLETE=bash trawl -- "${words[@]}"
    )) || COMPREPLY=()
    # Readline inserts the candidates after the last of these.
    if [[ -n $joined ]]; then
        local current=${words[index]}
        COMPREPLY=("${COMPREPLY[@]#"${current%"${current##*[:=]}"}"}")
    fi
    [[ ${COMPREPLY-} =~ [=/:]$ ]] || compopt +o nospace
}
complete -o nospace -o bashdefault -o nosort -F _trawl trawl
